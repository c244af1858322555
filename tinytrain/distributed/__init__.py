"""Training in many processes: starting them, agreeing on numbers, and one model in all of them.

launch    start a function in several processes and bring back what it returns
group     rank, world size, sums and agreements over the processes
wrap      one model in all processes: copies (DistributedDataParallel) or shares of it (fully_shard)
"""

from tinytrain.distributed.group import in_group, rank, under_torchrun, world_size
from tinytrain.distributed.launch import LaunchError, launch
from tinytrain.distributed.wrap import replicate, shard

__all__ = [
    "LaunchError",
    "in_group",
    "launch",
    "rank",
    "replicate",
    "shard",
    "under_torchrun",
    "world_size",
]
