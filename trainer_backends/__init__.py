"""Training: the algorithms as pure parts, and the engines that run them."""

import os

# Threads that spin while they wait lose most of their speed when another process wants their core; torch's are told
# to sleep, before it is first imported.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
