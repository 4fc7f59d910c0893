"""The two version numbers: of the distribution, and of the interface that plugins are written against."""

__version__ = "0.1.0"
API_VERSION = "1.0"
