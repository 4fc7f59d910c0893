"""What a run shows: the terminal summary, rollout records, reports. Submodules are imported when used."""
