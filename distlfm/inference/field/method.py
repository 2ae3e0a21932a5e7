"""What the methods of fields share: what they refuse, and how their fits are read again."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from torch import Tensor

from distlfm.config import build
from distlfm.errors import UsageError
from distlfm.inference.base import Posterior
from distlfm.inference.collapsed import CollapsedPosterior, restore
from distlfm.inference.field.map import FieldMap
from distlfm.inference.field.settings import FieldSettings, build_map, settle
from distlfm.inference.marginal import Marginal
from distlfm.inference.method import Method
from distlfm.inference.model import Model
from distlfm.inference.observations import Observations
from distlfm.instance import Instance

if TYPE_CHECKING:
    from distlfm.inference.fit import InferenceConfig


class FieldMethod(Method):
    """A method of fields, whose options are settled when it fits."""

    fields: ClassVar[bool] = True

    @classmethod
    def check(cls, model: Model, options: InferenceConfig) -> None:
        for name in ("until", "grid_points"):
            if getattr(options, name) != type(options).model_fields[name].default:
                raise UsageError(
                    f"inference.{name} has no effect on a field.", "Leave it out, and ask the result for any points."
                )
        # Only curves in time have these: slopes of a field are those of a Gaussian process over time and space.
        for name, field in type(options.preestimate).model_fields.items():
            if name != "enabled" and getattr(options.preestimate, name) != field.default:
                raise UsageError(
                    f"inference.preestimate.{name} has no effect on a field, whose surface is always a Gaussian "
                    "process.",
                    "Leave it out.",
                )
        if not model.likelihood.gaussian:
            raise UsageError(
                f"Fields are fitted with Gaussian noise, and the likelihood is {model.likelihood.options.kind!r}.",
                "Set likelihood.kind=gaussian.",
            )

    @classmethod
    def settled(cls, model: Model, instances: Sequence[Instance], options: InferenceConfig) -> InferenceConfig:
        if options.settled is not None:
            return options
        return options.model_copy(update={"settled": settle(model, instances, options.field)})

    @classmethod
    def bytes(cls, model: Model, num_times: int, options: InferenceConfig) -> int:
        del model, options
        return 8 * 400 * num_times * 100

    @classmethod
    @abstractmethod
    def marginal(cls, observations: Observations, field_map: FieldMap, state: dict[str, Tensor]) -> Marginal:
        """The marginal of a saved fit, linearised where it was."""

    @classmethod
    def settings(cls, posterior: Posterior) -> dict[str, Any]:
        assert isinstance(posterior, CollapsedPosterior)
        kept: dict[str, Any] = posterior.marginal.map.settings.model_dump(mode="json")  # type: ignore[attr-defined]
        return kept

    @classmethod
    def restore(
        cls, model: Model, observations: Observations, settings: dict[str, Any], state: dict[str, Tensor]
    ) -> Posterior:
        field_map = build_map(model, build(FieldSettings, settings))
        return restore(cls.name, cls.marginal(observations, field_map, state), state)
