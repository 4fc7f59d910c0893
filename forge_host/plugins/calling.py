"""Call by name: a loss, reward or advantage gets exactly the values that its signature names.

    call = CallByName(loss, LOSS_ARGUMENTS, "loss `dapo/dapo`")
    if "ref_logprobs" in call.names: ...           # so the reference model is started
    per_token = call(**every_tensor_there_is)      # only the named ones are passed

The signature is checked when it is wrapped, before any process starts. An argument without a default that nobody
provides is an error; one with a default keeps it; `**kwargs` gets everything.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from forge_host.errors import PluginError
from forge_host.plugins.suggest import did_you_mean


class CallByName:
    """Wraps `fn`; works for functions, objects with `__call__`, and `torch.nn.Module`s (signature of `forward`).

    Args:
        fn: what is called.
        known: names of the values that exist.
        what: the component, for messages: "loss `dapo/dapo`".

    Raises:
        PluginError: a required argument is not among `known`, or the signature cannot be read.
    """

    def __init__(self, fn: Callable[..., Any], known: Sequence[str], what: str) -> None:
        self.fn, self.known, self.what = fn, tuple(known), what
        #: The known values that `fn` takes.
        self.names: frozenset[str] = _names(fn, self.known, what)
        #: Those of them that a call cannot do without: named, and without a default.
        self.required: frozenset[str] = self.names & _without_default(fn)

    @property
    def is_async(self) -> bool:
        """Whether a call returns a coroutine."""
        target = _signed(self.fn)
        return inspect.iscoroutinefunction(target) or inspect.iscoroutinefunction(getattr(target, "__call__", None))  # noqa: B004

    def __call__(self, **available: Any) -> Any:
        """Calls `fn` with those of `available` that it names."""
        return self.fn(**{name: value for name, value in available.items() if name in self.names})

    def __repr__(self) -> str:
        return f"CallByName({self.what}, names={sorted(self.names)})"


def _signed(fn: Any) -> Any:
    """The function whose signature counts. `nn.Module.__call__` is `(*args, **kwargs)`, so its `forward` does."""
    bases = type(fn).__mro__
    is_module = any(base.__name__ == "Module" and base.__module__.startswith("torch.nn.") for base in bases)
    return fn.forward if is_module else fn


def _without_default(fn: Any) -> frozenset[str]:
    parameters = inspect.signature(_signed(fn)).parameters.values()
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return frozenset(p.name for p in parameters if p.kind in kinds and p.default is p.empty)


def _names(fn: Any, known: tuple[str, ...], what: str) -> frozenset[str]:
    if not callable(fn):
        raise PluginError(f"{type(fn).__name__} object cannot be called", where=what, fix="give it a `__call__` method")
    try:
        parameters = inspect.signature(_signed(fn)).parameters.values()
    except (ValueError, TypeError) as error:
        raise PluginError(
            f"its signature cannot be read ({error})", where=what, fix="wrap it in a function with named arguments"
        ) from error
    taken: set[str] = set()
    for parameter in parameters:
        if parameter.kind is parameter.VAR_KEYWORD:
            taken.update(known)
        elif parameter.kind is parameter.POSITIONAL_ONLY:
            raise PluginError(
                f"argument `{parameter.name}` is positional-only, values are passed by name",
                where=what,
                fix="remove the `/` from its signature",
            )
        elif parameter.name in known:
            taken.add(parameter.name)
        elif parameter.default is parameter.empty and parameter.kind is not parameter.VAR_POSITIONAL:
            guess = did_you_mean(parameter.name, known)
            listed = f"known: {', '.join(f'`{name}`' for name in known)}"
            raise PluginError(
                f"it asks for `{parameter.name}`, which does not exist",
                where=what,
                fix=f"{guess} {listed}" if guess else listed,
            )
    return frozenset(taken)
