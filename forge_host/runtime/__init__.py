"""Monarch: actors, services, placement, launchers. Submodules are imported when used; this package is light."""

import os

# Monarch reads it once, when it is imported, which is after this. Its own 10 s would be the time until a request of
# a dead replica goes elsewhere; 1 s makes that half a second on average.
os.environ.setdefault("HYPERACTOR_MESH_SUPERVISION_POLL_FREQUENCY", "1s")
