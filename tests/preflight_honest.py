"""Models with nothing to find: of several kinds, with parts that look odd, and called in ways of their own."""

import os
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from preflight_models import D, Plain, V, at_the_end, small, variant
from torch import nn
from torch.utils.checkpoint import checkpoint

from tinytrain.course.handwritten import MendedLM
from tinytrain.model import GPT, PRESETS

os.environ |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}  # read when transformers is imported, further down


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.lstm, self.head = nn.Embedding(V, D), nn.LSTM(D, D, batch_first=True), nn.Linear(D, V)

    def forward(self, input_ids):
        return self.head(self.lstm(self.tokens(input_ids))[0])


class Experts(nn.Module):
    """A router and the best two of ``count`` experts; ``moving``: its bias follows the load in training."""

    def __init__(self, count, moving):
        super().__init__()
        self.router, self.moving = nn.Linear(D, count, bias=False), moving
        self.experts = nn.ModuleList(nn.Linear(D, D) for _ in range(count))
        self.register_buffer("bias", torch.zeros(count))

    def forward(self, x):
        flat = x.reshape(-1, D)
        gates = self.router(flat).sigmoid()
        chosen = (gates + self.bias).topk(2, -1).indices
        out = torch.zeros_like(flat)
        for e, expert in enumerate(self.experts):
            token, _ = (chosen == e).nonzero(as_tuple=True)
            if len(token):
                out = out.index_add(0, token, expert(flat[token]) * gates[token, e, None])
        if self.training and self.moving:
            load = chosen.flatten().bincount(minlength=len(self.experts)).float()
            self.bias += 0.05 * (load.mean() - load).sign()
        return out.view_as(x)


def mixture(count, moving=False):
    class Mixture(Plain):
        def finish(self):
            self.wide = self.narrow = None
            self.experts = nn.ModuleList(Experts(count, moving) for _ in range(2))

        def feed(self, i, x):
            return self.experts[i](x)

    return Mixture


class Rounded(Plain):
    """A straight-through estimator: rounded forward, as if it were not backward."""

    def answer(self, x):
        return self.head(x + ((4 * x).round() / 4 - x).detach())


class Recomputed(Plain):
    """Checkpointing in its old way, which knows ``backward()`` only."""

    def block(self, i, x, allowed):
        if not torch.is_grad_enabled():
            return super().block(i, x, allowed)
        return checkpoint(super().block, i, x, allowed, use_reentrant=True)


class Scaled(Plain):
    """Divides by a running scale, which training moves after each use."""

    def finish(self):
        self.register_buffer("size", torch.ones(()))

    def answer(self, x):
        scaled = self.head(x / self.size)
        if self.training:
            self.size = 0.9 * self.size + 0.1 * x.detach().std()
        return scaled


def own_generator(self):
    self.draws = torch.Generator().manual_seed(3)


def dropped(self, x):
    keep = torch.rand(x.shape, generator=self.draws) > 0.1
    return self.head(x * keep / 0.9 if self.training else x)


class NeedsMask(Plain):
    def forward(self, input_ids, attention_mask):
        return super().forward(input_ids, attention_mask)


class Tuple(Plain):
    """As nanoGPT is called: ids and targets in, logits and loss out."""

    def forward(self, idx, targets=None):
        logits = super().forward(idx)
        loss = None if targets is None else F.cross_entropy(logits.flatten(0, 1), targets.flatten())
        return (logits if targets is not None else logits[:, [-1]]), loss


def hugging_face(kind):
    pytest.importorskip("transformers")
    from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

    special = {"vocab_size": V, "bos_token_id": None, "eos_token_id": None}
    if kind == "gpt2":
        return GPT2LMHeadModel(GPT2Config(n_positions=32, n_embd=32, n_layer=2, n_head=2, **special))
    sizes = {"hidden_size": 32, "intermediate_size": 64, "max_position_embeddings": 32, "num_hidden_layers": 2}
    return LlamaForCausalLM(LlamaConfig(num_attention_heads=2, num_key_value_heads=1, **sizes, **special))


HEALTHY = {
    "GPT nano": lambda: GPT(PRESETS["nano"]),
    "GPT tiny, dropout": lambda: GPT(replace(PRESETS["tiny"], dropout=0.2)),
    "plain nn.Module": Plain,
    "TransformerEncoder": small(MendedLM),
    "LSTM": Recurrent,
    "mixture of 4 experts": mixture(4),
    "mixture of 32 experts, some unused": mixture(32),
    "a router's bias follows the load": mixture(8, moving=True),
    "straight-through estimator": Rounded,
    "checkpointing with use_reentrant": Recomputed,
    "running scale": Scaled,
    "a generator of its own": variant(finish=own_generator, answer=dropped),
    "head starts at zero": at_the_end(lambda s: nn.init.zeros_(s.head.weight)),
    "float64": lambda: Plain().double(),
    "bfloat16 by autocast": variant(forward=torch.autocast("cpu", torch.bfloat16)(Plain.forward)),
    "Hugging Face GPT-2": lambda: hugging_face("gpt2"),
    "Hugging Face Llama": lambda: hugging_face("llama"),
}
