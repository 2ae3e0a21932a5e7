"""Schemes of time stepping: every engine takes its coefficients, and the order of its steps, from here.

A scheme solves `M ẏ = F(y, f)` by the rate at both ends of a step: `M (y' − y) = dt (old F(y, f) + new F(y', f'))`. For
`F = A y + B f + c` this is `left y' = right y + kick` with `left = M − new dt A`, `right = M + old dt A` and
`kick = dt (B (old f + new f') + c)`. An engine supplies the linear algebra, a `Step`; `sweep` and `sweep_back` put
steps and their adjoints in order. Nothing here needs torch, because ranks of helper groups use it too.

A new scheme is a file with `register(Scheme("name", old, new, order))`. A config names the file in `plugins` and the
scheme in `mechanism.scheme`. `tests/contracts/test_scheme.py` is what it has to pass; `--plugin FILE` puts it through.

Shapes: `N` steps, `K ≤ N + 1` leading times at which a value is not zero, `P ≤ N` leading steps that they reach.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from distlfm.config.keys import Registry
from distlfm.errors import UsageError

Array = TypeVar("Array")
"""A numpy array or a tensor of torch."""


@dataclass(frozen=True)
class Scheme:
    """old, new: weights of the rates at the start and at the end of a step. order: of convergence in the step."""

    name: str
    old: float
    new: float
    order: int

    def __post_init__(self) -> None:
        if abs(self.old + self.new - 1) > 1e-12:
            raise UsageError(
                f"The weights {self.old:g} and {self.new:g} of the scheme {self.name!r} do not sum to 1.",
                "A scheme whose weights do not does not converge to the equation: correct them.",
            )

    def left(self, mass: Any, rate: Any, dt: float) -> Any:
        """The matrix to solve with."""
        return mass - self.new * dt * rate

    def right(self, mass: Any, rate: Any, dt: float) -> Any:
        """The matrix that is applied to the state before a step."""
        return mass + self.old * dt * rate

    def between(self, before: Array, after: Array, zero: Any = 0.0) -> Array:
        """What a step takes for a value given at both its ends. zero: stands for a weight that is zero."""
        weighted: Array = (self.old or zero) * _any(before) + (self.new or zero) * _any(after)
        return weighted

    def between_transposed(self, gradient: Array) -> tuple[Array, Array]:
        """The adjoint of `between`: the gradients by the value at the start and at the end of a step."""
        return self.old * _any(gradient), self.new * _any(gradient)

    def mix(self, values: Array, steps: int) -> Array:
        """`between` for each step: values [..., K, J] at the leading times → [..., P, J]."""
        given = _any(values)
        count = min(given.shape[-2] if self.old else given.shape[-2] - 1, steps)
        found, later = self.old * given[..., :count, :], given[..., 1 : count + 1, :]
        found[..., : later.shape[-2], :] += self.new * later
        mixed: Array = found
        return mixed

    def mix_transposed(self, gradient: Array, out: Array) -> Array:
        """The adjoint of `mix`: gradient [..., P, J] is added to out [..., K, J]."""
        given, found = _any(gradient), _any(out)
        count, later = given.shape[-2], min(given.shape[-2], found.shape[-2] - 1)
        found[..., :count, :] += self.old * given
        found[..., 1 : 1 + later, :] += self.new * given[..., :later, :]
        return out

    @property
    def pulse_time(self) -> int:
        """The time, 0 or 1, at which a force kicks the first step and no other."""
        return 0 if self.old else 1

    def mix_in_pulses(self, values: Array, steps: int) -> Array:
        """`mix` in units of the kick of a force of one at `pulse_time`."""
        mixed: Array = _any(self.mix(values, steps)) / (self.old or self.new)
        return mixed


@dataclass(frozen=True)
class Step(Generic[Array]):
    """The linear algebra of one step, as an engine supplies it: to solve with `left`, and to apply `right`.

    Its adjoint is a step too, with the transposes of both.
    """

    solve: Callable[[Array], Array]
    right: Callable[[Array], Array]

    def advance(self, before: Array, kick: Any) -> Array:
        """The state after a step."""
        return self.solve(_any(self.right(before)) + kick)


def sweep(steps: Sequence[Callable[[Array, Any], Array]], start: Array, kicks: Iterable[Any]) -> Iterator[Array]:
    """The state at all N + 1 times.

    steps: the function (state, kick) → state of each, which is `Step.advance` unless an engine has a shorter way.
    """
    state = start
    yield state
    for advance, kick in zip(steps, kicks, strict=True):
        state = advance(state, kick)
        yield state


def sweep_back(steps: Sequence[Step[Array]], pulled: Iterable[Array], visit: Callable[[int, Array], None]) -> Array:
    """The gradient by the start. `visit` gets each step n, the last one first, and the gradient by its kick.

    steps: the adjoint of each. pulled: the gradient by what is seen at each of the N + 1 times, the last one first.
    """
    given = iter(pulled)
    gradient = next(given)
    for n in reversed(range(len(steps))):
        multiplier = steps[n].solve(gradient)
        visit(n, multiplier)
        gradient = _any(next(given)) + steps[n].right(multiplier)
    return gradient


def _any(array: object) -> Any:
    """An array of either kind, whose operations the type checker is not asked about."""
    return array


SCHEMES: Registry[Scheme] = Registry("time scheme")
HOMES: dict[str, str] = {}
"""The module that registers each scheme."""


def register(scheme: Scheme) -> Scheme:
    """Make a scheme known to `mechanism.scheme` by its name, unless another one has it."""
    SCHEMES.put(scheme.name, scheme, repr)
    HOMES.setdefault(scheme.name, sys._getframe(1).f_globals["__name__"])
    return scheme


def scheme_named(name: str) -> Scheme:
    """The registered scheme of this name; UsageError where there is none."""
    return SCHEMES.find(name)


def scheme_in(header: Mapping[str, Any]) -> Scheme:
    """The scheme of a request to a helper group, whose processes know no plugins."""
    return Scheme(**header["scheme"]) if "scheme" in header else CRANK_NICOLSON


CRANK_NICOLSON = register(Scheme("crank_nicolson", old=0.5, new=0.5, order=2))
