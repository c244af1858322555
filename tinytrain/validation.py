"""What a run does with the batches that it does not train on."""

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING

from tinytrain.batches import Batch
from tinytrain.bits import bits_per_byte
from tinytrain.data import without_targets
from tinytrain.distributed.wrap import same_buffers
from tinytrain.generators import keep_generators
from tinytrain.loss import IGNORE_INDEX, count_targets
from tinytrain.step import check_micro_batches, evaluate

if TYPE_CHECKING:
    from tinytrain.train import Trainer


def try_validation(trainer: "Trainer") -> None:
    """Evaluate the first batch before the first update: what cannot work is found now and not at the end.

    A function is not called, for it may give other batches at each call. Raises ``ValueError`` as well where
    evaluations were asked for and there is nothing to evaluate on.
    """
    if trainer.validation is None and trainer.config.eval_every is not None:
        raise ValueError(
            f"TrainConfig.eval_every={trainer.config.eval_every} asks for evaluations, and the Trainer has no batches "
            f"for them: give it validation=[...], batches that it does not train on, or leave eval_every out"
        )
    if trainer.validation is None or callable(trainer.validation) or trainer.batch > 0:
        return
    with keep_generators():
        first = next(iter(trainer.validation), None)
        if first is None:
            raise ValueError("validation holds no batch: give at least one, or None for no evaluation")
        check_micro_batches([first])
        evaluate(trainer.model, [first], precision=trainer.precision)
        if not any(count_targets(batch["labels"]) for batch in trainer.validation):  # mostly the first one has some
            raise ValueError(f"validation has no target: every label in it is {IGNORE_INDEX}, so its loss would be NaN")


def validate(trainer: "Trainer") -> dict[str, float]:
    """What the log says of an evaluation, the same in every process: ``eval_loss``, and the bits per byte if known."""
    if trainer.processes > 1:
        same_buffers(trainer.model)
    with keep_generators():  # a function that gives the batches may draw some at random
        loss = evaluate(trainer.model, _own_batches(trainer), precision=trainer.precision).loss
    if trainer.bytes_per_token is None:
        return {"eval_loss": loss}
    return {"eval_loss": loss, "eval_bits_per_byte": bits_per_byte(loss, trainer.bytes_per_token)}


def _own_batches(trainer: "Trainer") -> Iterator[Batch]:
    """This process's batches: every ``processes``-th, the last round filled up with ones that do not count."""
    given, n = trainer.validation() if callable(trainer.validation) else trainer.validation or (), 0
    batches = iter(given)
    while together := list(islice(batches, trainer.processes)):
        n += len(together)
        if trainer.rank < len(together) or trainer.processes == 1:
            yield together[trainer.rank if trainer.processes > 1 else 0]
        else:
            yield without_targets(together[0])
    if n == 0:
        raise ValueError("validation gave no batch: it must give at least one at each call")
