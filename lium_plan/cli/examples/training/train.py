"""A stand-in for your training script: it tells what every member of a task is told. Start yours with torchrun, e.g.

torchrun --nnodes $LIUM_NODES_NUM --node-rank $LIUM_NODE_RANK --nproc-per-node $LIUM_GPUS_PER_NODE
         --master-addr $LIUM_MASTER_ADDR --master-port 29500 train.py
"""

import os

rank, nodes = os.environ["LIUM_NODE_RANK"], os.environ["LIUM_NODES_NUM"]
print(f"rank {rank} of {nodes}: {os.environ['LIUM_GPUS_PER_NODE']} GPUs, master at {os.environ['LIUM_MASTER_ADDR']}")
