"""What the laws ask of a trainer that they are to be run on."""

from collections.abc import Sequence
from typing import Any, Protocol

from torch import Tensor


class OwnTrainer(Protocol):
    """A class, or a function that returns such an object, called as

        trainer = MyTrainer(model, data, total_steps=…, max_lr=…, warmup_steps=…, max_grad_norm=…, folder=…)

    model          an nn.Module: model(input_ids, **whatever else the batch holds but its labels) gives logits [B,T,V].
                   It is trained in place. Its weights are float32.
    data           data[n] is the list of micro-batches of one update, for n = 0, 1, 2, … without end; each is a dict
                   with input_ids and labels [B,T], and perhaps attention_mask or doc_ids [B,T]. labels[b,t] is the
                   token that position t must predict, -100 for none; 0 is a token like any other.
    total_steps    updates in the whole run: 2 or more
    max_lr         the learning rate rises to it over warmup_steps updates, the first of which is not lost, and never
                   rises again
    warmup_steps   1 or more, and less than total_steps
    max_grad_norm  bound on the 2-norm of the whole gradient of an update: any number above 0, and 100 at most
    folder         a checkpoint goes there after every update, before data[n] of the next one is read by the model

    trainer.fit()       takes data[0], data[1], … each once, until total_steps updates are made. A batch whose loss or
                        gradient is not finite changes nothing; after many in a row (400 at most) an error ends the run.
    trainer.resume()    makes a new trainer that of the newest checkpoint in its folder, so that fit() goes on from
                        there. Raises if there is none, or if it is of another model.
    trainer.evaluate(batches)   a float: nats per target over a list of batches. It leaves each module in its mode.
    trainer.log         a list with a dict for each batch taken: "loss" (nats per target), "lr" (used), "skipped"

    Updates are made by the step() of a torch optimizer, or of each of several. With a further argument
    precision="fp32", "fp16" is asked for as well. What a trainer lacks is reported as not tested. Not seen are other
    precisions, GPUs, several processes, and modules that fit() wakes from eval mode.
    """

    log: list[dict[str, Any]]

    def fit(self) -> object: ...
    def resume(self) -> object: ...
    def evaluate(self, batches: Sequence[dict[str, Tensor]]) -> float: ...
