"""forge-host: the plugin-extensible host for reinforcement-learning post-training of language models.

Importing this package loads neither torch nor monarch; plugins import only `forge_host.api`.
"""

from forge_host._version import API_VERSION, __version__

__all__ = ["API_VERSION", "__version__"]
