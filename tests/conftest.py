"""What all tests share: one thread, so that timings and sums do not depend on the machine; helpers stand beside it."""

import torch

torch.set_num_threads(1)
