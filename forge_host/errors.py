"""Errors a user can cause, each with the exit code of the command line and one plain sentence.

`raise UsageError("config key `trainning` is unknown", where="c.yaml:12", fix="did you mean `training`?")` prints as
`c.yaml:12: config key `trainning` is unknown; did you mean `training`?` and exits with 2. Tracebacks are shown only
with FORGE_DEBUG=1.
"""

from __future__ import annotations


class ForgeError(Exception):
    """Base of every error whose cause is outside the host's own code.

    Args:
        message: what is wrong, one sentence without a final full stop.
        where: file and line, plugin, role or host it was found at.
        fix: what to do next, an imperative or a question.
    """

    exit_code = 4

    def __init__(self, message: str, *, where: str | None = None, fix: str | None = None) -> None:
        super().__init__(message)
        self.message, self.where, self.fix = message, where, fix

    def __str__(self) -> str:
        text = f"{self.where}: {self.message}" if self.where else self.message
        return f"{text}; {self.fix}" if self.fix else text

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.message, self.where, self.fix)


class UsageError(ForgeError):
    """A wrong command line, configuration, dataset file or component setting (exit code 2)."""

    exit_code = 2


class PluginError(ForgeError):
    """A plugin or component that cannot be found, loaded, or accepted (exit code 3)."""

    exit_code = 3


class RunError(ForgeError):
    """A run that started and could not go on (exit code 4)."""

    exit_code = 4


def _rebuild(cls: type[ForgeError], message: str, where: str | None, fix: str | None) -> ForgeError:
    return cls(message, where=where, fix=fix)
