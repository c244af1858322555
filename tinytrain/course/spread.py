"""How far runs that differ only in their seed lie apart. A difference smaller than three spreads is not called one.

With one seed for each arm, as in the ``ci`` budget, nothing can be said about the spread. So a run with several
seeds records it in ``spread.json`` beside the notebooks, and the others read it there.
"""

import json
import math
import os
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

FILE = "spread.json"
RECORD = "TINYTRAIN_RECORD"  # set by `make notebooks`


def spread(name: str, arms: Mapping[str, Sequence[float]], *, folder: str | Path = ".") -> float:
    """The larger arm's standard deviation over seeds (n-1), in the unit of the values.

    With two seeds or more in every arm it is computed; ``make notebooks`` also records it under ``name``. With fewer
    it is read from the record in ``folder``, which is where notebooks run. Raises ``KeyError`` if none was recorded,
    and ``ValueError`` if the arms are equal in every seed.
    """
    if not arms:
        raise ValueError(f"spread({name!r}) needs the values of at least one arm")
    for arm, values in arms.items():
        if not values or not all(map(math.isfinite, values)):
            raise ValueError(f"spread({name!r}): arm {arm!r} is {list(values)}; it needs one finite value or more")
    path = Path(folder) / FILE
    if min(map(len, arms.values())) < 2:
        recorded = _read(path)
        if name not in recorded:
            raise KeyError(f"{path} holds no spread for {name!r}: run `make notebooks`, which trains several seeds")
        return recorded[name]
    value = max(statistics.stdev(values) for values in arms.values())
    if not value > 0:
        raise ValueError(f"spread of {name!r} is {value}: are the seeds of each arm really different?")
    if os.environ.get(RECORD) == "1":
        _record(path, name, value)
    return value


def _read(path: Path) -> dict[str, float]:
    if not path.is_file():
        return {}
    try:
        return {str(name): float(value) for name, value in json.loads(path.read_text(encoding="utf-8")).items()}
    except (ValueError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} cannot be read ({error}). Restore it from git, or run `make notebooks`") from None


def _record(path: Path, name: str, value: float) -> None:
    recorded = _read(path)
    recorded[name] = float(f"{value:.3g}")
    path.write_text(json.dumps(dict(sorted(recorded.items())), indent=2) + "\n", encoding="utf-8")
