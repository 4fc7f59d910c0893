"""The training loop: rollout, scoring, buffer, batching, train step, weight sync. Submodules are imported when used."""
