#!/bin/sh
set -eu
echo "node $LIUM_NODE_RANK of $LIUM_NODES_NUM"
