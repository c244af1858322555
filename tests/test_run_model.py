"""The options for training at size, through the command line: what each changes, and that nothing else does."""

import json
import shutil
from functools import partial

import pytest
import torch

import tinytrain.commands.run
from tinytrain.ahead import Ahead
from tinytrain.bits import bits_per_byte, bytes_per_target
from tinytrain.checkpoint import Checkpointer
from tinytrain.commands.main import main
from tinytrain.commands.run import ProgressBar
from tinytrain.commands.run_model import build_model, model_config
from tinytrain.commands.run_options import Train, load_options, load_run_tokenizer
from tinytrain.commands.run_text import text_of
from tinytrain.commands.sample import Sample, sample_run
from tinytrain.compiled import CompilerMissingError
from tinytrain.model import GPT
from tinytrain.watch.doctor import diagnose
from tinytrain.weights import export_weights, load_weights

QUICK = ["train", "--steps", "4", "--batch-size", "3", "--micro-batch-size", "2", "--row-length", "16"]
QUICK += ["--eval-rows", "8", "--checkpoint-every", "2", "--eval-every", "2", "--dropout", "0.1"]
CURVE = ("batch", "loss", "grad_norm", "eval_loss", "eval_bits_per_byte")


def curve_of(run):
    lines = [json.loads(line) for line in (run / "log.jsonl").read_text("utf-8").splitlines()]
    return [{name: line[name] for name in CURVE if name in line} for line in lines]


@pytest.fixture(scope="module")
def begin(tmp_path_factory):
    """Starts a run on a small text and returns its folder."""
    folder = tmp_path_factory.mktemp("sizes")
    (folder / "poem.txt").write_text("却说曹操引军追赶，玄德大惊。To be, or not to be.\n" * 120, encoding="utf-8")

    def run(name, *options):
        corpus = ["--corpus", str(folder / "poem.txt"), "--prompt", "To", "--out", str(folder / name)]
        assert main([*QUICK, *corpus, *options]) == 0
        return folder / name

    return run


@pytest.fixture(scope="module")
def plain(begin):
    return begin("plain")


def test_recomputed_and_prefetched_it_is_the_same_run_to_the_last_bit(begin, plain, monkeypatch):
    taken = []

    class Noted(Ahead):
        def __getitem__(self, number):
            taken.append(number)
            return super().__getitem__(number)

    monkeypatch.setattr(tinytrain.commands.run, "Ahead", Noted)
    run = begin("recomputed", "--recompute", "--prefetch", "True")
    assert curve_of(run) == curve_of(plain) and taken == [0, 1, 2, 3]
    assert load_options(run).recompute and load_options(run).prefetch
    model, _ = build_model(load_options(run), 256)
    assert isinstance(model.blocks[0].forward, partial)


def test_without_a_cuda_device_batches_are_not_made_ahead_unless_asked_for(begin, plain, monkeypatch):
    monkeypatch.setattr(tinytrain.commands.run, "Ahead", None)
    monkeypatch.setattr(tinytrain.commands.run, "best_device", lambda: torch.device("cpu"))
    assert curve_of(begin("again")) == curve_of(plain)
    with pytest.raises(TypeError, match="NoneType"):
        begin("asked for", "--prefetch", "True")


def test_the_loss_in_chunks_is_the_same_run_up_to_rounding(begin, plain):
    run = begin("chunks", "--loss-chunk", "5")
    for ours, whole in zip(curve_of(run), curve_of(plain), strict=True):
        assert ours == pytest.approx(whole, rel=1e-4)
    model, parameters = build_model(load_options(run), 256)
    assert model.loss_chunk == 5 and parameters == 120_576


class StopsAfterTwo(ProgressBar):
    def __call__(self, record):
        super().__call__(record)
        return record["batch"] != 2


@pytest.fixture(scope="module")
def padded(begin):
    """(a run with 300 tokens in a model that has 320, the same one stopped after two updates)"""
    options = ["--tokenizer", "bpe", "--vocab-size", "300", "--pad-vocab-to", "64"]
    whole = begin("padded", *options)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tinytrain.commands.run, "ProgressBar", StopsAfterTwo)
        return whole, begin("stopped", *options)


def test_a_padded_vocabulary_is_the_models_and_not_the_tokenizers(padded):
    run, _ = padded
    _, state = Checkpointer(run / "checkpoints").load()
    assert load_run_tokenizer(run).vocab_size == 300
    assert state["model"]["tokens.weight"].shape == (320, 64)
    assert "initial loss" not in [finding.name for V in (300, 320) for finding in diagnose(run, vocab_size=V)]


def test_bits_per_byte_are_the_loss_over_the_bytes_of_the_text(padded):
    text = text_of(load_options(padded[0]), 16, resumed=True)
    validation = list(text.valid.batches(64, limit=8))
    last = curve_of(padded[0])[-1]
    per_token = bytes_per_target(validation, text.tokenizer.token_bytes())
    assert last["eval_bits_per_byte"] == pytest.approx(bits_per_byte(last["eval_loss"], per_token))


def test_a_padded_run_goes_on_to_the_same_end(padded, tmp_path):
    run = shutil.copytree(padded[1], tmp_path / "run")
    assert len(curve_of(run)) == 2 and main(["resume", str(run)]) == 0
    assert curve_of(run) == curve_of(padded[0])


def test_a_padded_model_is_sampled_and_exported_like_any_other(padded, tmp_path):
    run = padded[0]
    for seed in range(3):  # so hot that each id is as likely as any other
        text = sample_run(Sample(folder=run, new_tokens=60, temperature=1e6, seed=seed))
        assert text.startswith("To")
    _, state = Checkpointer(run / "checkpoints").load()
    model, again = (GPT(model_config(load_options(run), 300)) for _ in range(2))
    model.load_state_dict(state["model"])
    export_weights(model, tmp_path / "weights.safetensors")
    load_weights(again, tmp_path / "weights.safetensors")
    assert torch.equal(again.tokens.weight, state["model"]["tokens.weight"])


def test_a_run_of_before_these_options_goes_on_without_them(plain, tmp_path):
    run = shutil.copytree(plain, tmp_path / "run")
    new = {"pad_vocab_to": 1, "compile": False, "loss_chunk": None, "recompute": False, "prefetch": None}
    kept = json.loads((run / "run.json").read_text())
    assert {name: kept.pop(name) for name in new} == new
    (run / "run.json").write_text(json.dumps(kept))
    assert load_options(run) == Train(**{k: v for k, v in kept.items() if k != "tokenizer_fingerprint"}, out=run)
    assert main(["resume", str(run)]) == 0


@pytest.mark.parametrize(
    ("options", "words"),
    [(["--pad-vocab-to", "0"], "pad_vocab_to=0 must be at least 1"), (["--loss-chunk", "0"], "loss_chunk=0 must be")],
)
def test_what_cannot_be_is_refused_in_one_line(tmp_path, capsys, options, words):
    assert main([*QUICK, *options, "--out", str(tmp_path / "run")]) == 1
    error = capsys.readouterr().err
    assert words in error and error.count("\n") == 1 and not (tmp_path / "run").exists()


def test_without_a_compiler_it_is_said_before_anything_is_read_and_the_run_can_go_on_plain(
    plain, tmp_path, monkeypatch, capsys
):
    def missing(_device):
        raise CompilerMissingError("no compiler here")

    monkeypatch.setattr(tinytrain.commands.run, "require_compiler", missing)
    assert main([*QUICK, "--compile", "--corpus", "nowhere", "--out", str(tmp_path / "run")]) == 1
    assert capsys.readouterr().err == "tinytrain: no compiler here\n" and not (tmp_path / "run").exists()

    run = shutil.copytree(plain, tmp_path / "compiled")
    kept = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps(kept | {"compile": True}))
    assert main(["resume", str(run)]) == 1 and main(["resume", str(run), "--compile", "False"]) == 0
