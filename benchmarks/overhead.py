"""What a step of tinytrain costs over a bare PyTorch loop, and what other trainers' steps cost.

The ways train the same model on the same batches and take turns in blocks of steps; the table shows the median block,
per step, and the difference to the bare loop. Turns and medians, because other programs share the machine. A way with a
set-up of its own is timed from its second step to its last. Hugging Face's Trainer and Lightning take part where they
are installed (`pip install -e .[bench]`); each logs every step, as ours does.

    python benchmarks/overhead.py            the overhead configuration: 1 layer, d 32, 4 rows of 16 positions
    python benchmarks/overhead.py --tokens   the 0.8 M configuration: 4 layers, d 128, 12 rows of 64 positions
"""

import argparse
import contextlib
import importlib.util
import io
import logging
import statistics
import tempfile
import time
import warnings
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import torch.nn.functional as F

from tinytrain.model import GPT, PRESETS, ModelConfig
from tinytrain.optimizer import build_adamw
from tinytrain.step import train_step
from tinytrain.train import TrainConfig, Trainer

MAX_GRAD_NORM = 1.0


@dataclass(frozen=True)
class Case:
    model: ModelConfig
    rows: int
    length: int
    block: int
    blocks: int


OVERHEAD = Case(ModelConfig(vocab_size=256, d_model=32, n_layers=1, n_heads=2, max_positions=16), 4, 16, 50, 40)
TOKENS = Case(replace(PRESETS["tiny"], max_positions=64), 12, 64, 5, 15)


def bare_loop(case, batches):
    """The least that trains: forward, loss, backward, clip, step, zero."""
    model = make_model(case)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)

    def block(stamp):
        for batch in batches:
            logits = model(batch["input_ids"])
            F.cross_entropy(logits.view(-1, logits.shape[-1]), batch["labels"].view(-1)).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_GRAD_NORM)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            stamp()

    return block


def our_step(case, batches):
    """``train_step`` alone."""
    model = make_model(case)
    optimizer = build_adamw(model, lr=1e-3)

    def block(stamp):
        for batch in batches:
            train_step(model, [batch], optimizer, lr=1e-3, max_grad_norm=MAX_GRAD_NORM)
            stamp()

    return block


def our_trainer(case, batches, folder):
    """The whole ``Trainer``, with schedule, counters and a log on disk."""
    model, runs = make_model(case), iter(range(10**9))

    def block(stamp):
        config = TrainConfig(total_steps=case.block, max_lr=1e-3, warmup_steps=5, out=folder / str(next(runs)))
        Trainer(model, lambda n: [batches[n]], config, [lambda _record: stamp()]).fit()

    return block


class WithLoss(torch.nn.Module):
    """A model that other trainers can train: it makes the loss itself."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, input_ids, labels):
        logits = self.model(input_ids)
        return {"loss": F.cross_entropy(logits.view(-1, logits.shape[-1]), labels.view(-1))}


def hugging_face(case, batches, folder):
    """``transformers.Trainer``: fused AdamW, clipping, a schedule, a line of log for each step."""
    from transformers import Trainer as Theirs
    from transformers import TrainerCallback, TrainingArguments, logging
    from transformers.trainer_callback import PrinterCallback

    logging.set_verbosity_error()
    rows = [{name: batch[name][i] for name in batch} for batch in batches for i in range(case.rows)]
    model = WithLoss(make_model(case))

    class Stamps(TrainerCallback):
        def __init__(self, stamp):
            self.stamp = stamp

        def on_step_end(self, *_arguments, **_named):
            self.stamp()

    def block(stamp):
        settings = TrainingArguments(
            output_dir=str(folder / "hugging face"),
            max_steps=case.block,
            per_device_train_batch_size=case.rows,
            learning_rate=1e-3,
            warmup_steps=5,
            lr_scheduler_type="cosine",
            optim="adamw_torch_fused",
            max_grad_norm=MAX_GRAD_NORM,
            logging_steps=1,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            use_cpu=True,
            dataloader_pin_memory=False,
        )
        trainer = Theirs(model=model, args=settings, train_dataset=rows, callbacks=[Stamps(stamp)])
        trainer.remove_callback(PrinterCallback)
        with contextlib.redirect_stdout(io.StringIO()):
            trainer.train()

    return block


def lightning(case, batches, folder):
    """``lightning.Trainer``: fused AdamW, clipping, a schedule, a line of CSV for each step."""
    from lightning import Callback, LightningModule
    from lightning import Trainer as Theirs
    from lightning.pytorch.loggers import CSVLogger

    for name in ("lightning", "lightning.pytorch", "lightning.pytorch.utilities.rank_zero"):
        logging.getLogger(name).setLevel(logging.ERROR)

    class Module(LightningModule):
        def __init__(self):
            super().__init__()
            self.inner = WithLoss(make_model(case))

        def training_step(self, batch, _number):
            loss = self.inner(**batch)["loss"]
            self.log("loss", loss)
            return loss

        def configure_optimizers(self):
            optimizer = torch.optim.AdamW(self.parameters(), lr=1e-3, fused=True)
            schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, case.block)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    class Stamps(Callback):
        def __init__(self, stamp):
            self.stamp = stamp

        def on_train_batch_end(self, *_arguments, **_named):
            self.stamp()

    module = Module()

    def block(stamp):
        trainer = Theirs(
            max_steps=case.block,
            accelerator="cpu",
            gradient_clip_val=MAX_GRAD_NORM,
            logger=CSVLogger(folder / "lightning"),
            log_every_n_steps=1,
            callbacks=[Stamps(stamp)],
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(module, torch.utils.data.DataLoader(batches, batch_size=None))

    return block


def make_model(case):
    torch.manual_seed(0)
    return GPT(case.model)


def make_batches(case):
    ids = torch.randint(0, 256, (case.block, case.rows, case.length + 1), generator=torch.Generator().manual_seed(0))
    return [{"input_ids": row[:, :-1].contiguous(), "labels": row[:, 1:].contiguous()} for row in ids]


def ways_of(case, folder):
    """{name: block}; those of other packages only where they are installed."""
    batches = make_batches(case)
    ways = {
        "bare loop": bare_loop(case, batches),
        "`train_step`": our_step(case, batches),
        "`Trainer`, log on disk": our_trainer(case, batches, folder),
    }
    others = {"Hugging Face `Trainer`": (hugging_face, "accelerate"), "Lightning": (lightning, "lightning")}
    for name, (make, package) in others.items():
        if importlib.util.find_spec(package):
            ways[name] = make(case, batches, folder)
    return ways


def measure(case):
    """Milliseconds per step: {name: [one number per block]}, the blocks of all names taking turns."""
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ways = ways_of(case, Path(folder))
        times = {name: [] for name in ways}
        for turn in range(case.blocks + 2):
            for name, block in ways.items():
                stamps = []
                block(lambda stamps=stamps: stamps.append(time.perf_counter()))
                if turn >= 2:  # the first two turns warm up
                    times[name].append((stamps[-1] - stamps[0]) / (len(stamps) - 1) * 1000)
    return times


def table(case):
    """The measurements as a Markdown table, line by line."""
    torch.set_num_threads(1)
    times = measure(case)
    medians = {name: statistics.median(blocks) for name, blocks in times.items()}
    bare = medians["bare loop"]
    what = f"{case.model.n_layers} layer{'s' * (case.model.n_layers > 1)}, d {case.model.d_model}, {case.rows} rows"
    yield f"| {what} of {case.length} positions | ms a step | over bare | tokens/s | of bare |"
    yield "|---|---|---|---|---|"
    for name, ms in medians.items():
        rate = case.rows * case.length / ms * 1000
        over = "" if name == "bare loop" else f"{ms - bare:+.3f} ms"
        yield f"| {name} | {ms:.3f} | {over} | {rate:,.0f} | {bare / ms:.2f} |"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", action="store_true", help="the 0.8 M configuration instead")
    for line in table(TOKENS if parser.parse_args().tokens else OVERHEAD):
        print(line, flush=True)


if __name__ == "__main__":
    main()
