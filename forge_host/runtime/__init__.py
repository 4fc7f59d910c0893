"""Monarch: actors, services, placement, launchers. Submodules are imported when used; this package is light."""
