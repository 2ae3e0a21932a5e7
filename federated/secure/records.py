"""Flower's records as one vector of numbers for a secure sum, and the mean of the sum as records again.

The vector holds the weight first, then every metric and array times the weight: so the sum divided by the summed
weights is the weighted mean, and neither counts nor metrics are seen one by one. An array that came with the request
under the same name and shape travels as its difference from that: small numbers, which are what the policy clips.

A site never refuses because of what its numbers are: that would tell about them outside of the masks. What the sum
cannot hold is held back; see `within`.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from distlfm.federated.refused import Reason, Refused
from distlfm.federated.secure.messages import Fields, Part, canonical
from distlfm.federated.secure.ring import Bits, FloatArray, largest

WEIGHT_BITS, METRIC_BITS, ARRAY_BITS = 20, 32, 40
"""Fraction bits: metrics are larger than differences of weights, and counts larger than both."""

BITS = {"weight": WEIGHT_BITS, "metric": METRIC_BITS, "array": ARRAY_BITS, "difference": ARRAY_BITS}
SITES = "num-sites"

METRIC_BOUND = 1e4
"""No metric counts for more than this; one that is not a number counts for this."""

Record = TypeVar("Record")


def request_digest(content: RecordDict) -> str:
    """A hash over all of a request: sites that agree on it were asked the same, with the same weights."""
    digest = hashlib.sha256()
    for name, record in content.items():
        for piece in (name.encode(), type(record).__name__.encode(), *_pieces(record)):
            digest.update(len(piece).to_bytes(8, "big"))
            digest.update(piece)
    return digest.hexdigest()


def _pieces(record: ArrayRecord | MetricRecord | ConfigRecord) -> Iterator[bytes]:
    yield len(record).to_bytes(8, "big")
    for key, value in record.items():
        yield key.encode()
        if isinstance(value, Array):
            yield canonical([value.dtype, list(value.shape), value.stype])
            yield value.data
        else:
            yield f"{type(value).__name__} {value!r}".encode()


def flatten(
    request: RecordDict,
    reply: RecordDict,
    weight_name: str,
    clip: float | None,
    weigh: Callable[[float], float] = float,
) -> tuple[tuple[Part, ...], FloatArray]:
    """The parts of an answer and its numbers [N], each times the weight but for the weight itself.

    weigh: what a number of patients counts for.
    """
    metrics = _only(reply.metric_records, "MetricRecord")
    arrays = _only(reply.array_records, "ArrayRecord") if reply.array_records else ArrayRecord()
    weight = metrics.get(weight_name)
    if not isinstance(weight, (int, float)) or not math.isfinite(weight) or weight <= 0:
        raise Refused(Reason.EXAMPLES, f"The answer has no positive {weight_name}.")
    parts: list[Part] = [(weight_name, "weight", "float64", ())]
    values: list[FloatArray] = [np.ones(1)]
    for name, value in sorted(metrics.items()):
        if name != weight_name:
            number = np.asarray(value, dtype=np.float64)
            parts.append((name, "metric", "float64", number.shape))
            values.append(number.ravel())
    known = _arrays(request)
    moved: list[FloatArray] = []
    for name, array in sorted(arrays.items()):
        number, flat = array.numpy(), _reals(array)
        before = known.get(name)
        if before is not None and before.shape == array.shape:
            parts.append((name, "difference", str(number.dtype), number.shape))
            moved.append(flat - _reals(before))
            values.append(moved[-1])
        else:
            parts.append((name, "array", str(number.dtype), number.shape))
            values.append(flat)
    if clip is not None:
        if any(kind == "array" for _, kind, _, _ in parts):
            raise Refused(Reason.REQUEST, "The policy clips updates, and the request lacks what they would start from.")
        _clip(moved, clip)
    return tuple(parts), np.concatenate(values) * weigh(float(weight))


def _clip(moved: list[FloatArray], clip: float) -> None:
    """Shorten the update, in place, to the policy's norm; one that is not finite is left to `within`."""
    unit = max((float(np.abs(part).max(initial=0.0)) for part in moved), default=0.0)
    if not 0 < unit < math.inf:
        return
    length = math.sqrt(sum(float((part / unit) @ (part / unit)) for part in moved))
    if length * unit > clip:
        for part in moved:
            part *= clip / length / unit


def within(
    parts: tuple[Part, ...], values: FloatArray, count: int, bound: float = METRIC_BOUND
) -> tuple[FloatArray, list[str]]:
    """Numbers [N] of an answer as a sum of `count` sites can hold them, and the names of parts that were changed.

    A metric is cut to `bound`, or to `METRIC_BOUND` if that is less. Arrays and differences are cut to what the ring
    holds, each number by itself: one that became nothing because a number in it is too large would compare that number
    with what the coordinator sent. What is not a number in an array is zero, and a difference with one is none.
    """
    weight, found, start, changed = float(values[0]), values.copy(), 0, []
    for part in parts:
        name, kind, _, _ = part
        here = slice(start, start + size_of(part))
        start, limit = here.stop, largest(BITS[kind], count)
        most = min(limit, min(bound, METRIC_BOUND) * weight) if kind == "metric" else limit
        unknown = most if kind == "metric" else 0.0
        found[here] = np.clip(np.nan_to_num(values[here], nan=unknown, posinf=most, neginf=-most), -most, most)
        if not np.array_equal(found[here], values[here]):
            changed.append(name)
            if kind == "difference" and not np.isfinite(values[here]).all():
                found[here] = 0.0
    return found, changed


def bits_of(fields: Fields) -> Bits:
    """Fraction bits [N] of a vector's numbers."""
    return np.repeat(
        np.array([BITS[kind] for _, kind, _, _ in fields.parts], dtype=np.int64),
        [size_of(part) for part in fields.parts],
    )


def fits(request: RecordDict, fields: Fields, size: int) -> bool:
    """Whether a vector of `size` numbers has this form, and its differences are from what was sent."""
    known = _arrays(request)
    kinds = [kind for _, kind, _, _ in fields.parts]
    return (
        kinds.count("weight") == 1
        and fields.parts[0][1:] == ("weight", "float64", ())
        and sum(map(size_of, fields.parts)) == size
        and all(
            name in known and known[name].shape == shape
            for name, kind, _, shape in fields.parts
            if kind == "difference"
        )
    )


def mean_records(request: RecordDict, fields: Fields, total: FloatArray, num_sites: int) -> RecordDict:
    """The weighted mean of the answers, with the summed weight and the number of sites among its metrics."""
    weight = float(total[0])
    metrics, arrays = MetricRecord({fields.parts[0][0]: weight, SITES: float(num_sites)}), ArrayRecord()
    known, start = _arrays(request), 1
    for part in fields.parts[1:]:
        name, kind, _, shape = part
        mean = total[start : start + size_of(part)] / weight
        start += size_of(part)
        if kind == "metric":
            metrics[name] = float(mean[0]) if shape == () else [float(value) for value in mean]
        else:
            arrays[name] = _array(part, mean + _reals(known[name]) if kind == "difference" else mean)
    records = RecordDict({"metrics": metrics})
    if len(arrays):
        records["arrays"] = arrays
    return records


def _array(part: Part, flat: FloatArray) -> Array:
    _, _, kind, shape = part
    dtype = np.dtype(kind)
    if dtype.kind == "c":
        return Array(flat.view(np.complex128).astype(dtype).reshape(shape))
    number = np.rint(flat) if dtype.kind in "iu" else flat
    return Array(number.astype(dtype).reshape(shape))


def _reals(array: Array) -> FloatArray:
    """An array's numbers in a row, complex ones as pairs, as a copy."""
    number = array.numpy()
    if number.dtype.kind == "c":
        return np.ascontiguousarray(number, dtype=np.complex128).ravel().view(np.float64).copy()
    if number.dtype.kind not in "fiu":
        raise Refused(Reason.RANGE, f"Arrays of {number.dtype} have no mean.")
    return number.astype(np.float64).ravel()


def size_of(part: Part) -> int:
    """Return how many numbers of the vector a part has."""
    _, _, dtype, shape = part
    return math.prod(shape) * (2 if np.dtype(dtype).kind == "c" else 1)


def _arrays(records: RecordDict) -> dict[str, Array]:
    """Arrays by name. With two records a name could mean one array to the app, and another one to the sum."""
    if len(records.array_records) > 1:
        raise Refused(Reason.MALFORMED, "A request has one ArrayRecord.")
    return {name: array for record in records.array_records.values() for name, array in record.items()}


def _only(records: Mapping[str, Record], kind: str) -> Record:
    if len(records) != 1:
        raise Refused(Reason.FAILED, f"An answer has one {kind}, not {len(records)}.")
    return next(iter(records.values()))
