"""One torch thread per test process: the models are small and two processes share two cores."""

from __future__ import annotations

import torch

torch.set_num_threads(1)
