#!/bin/sh
# Runs once on each trainer, in the image's environment; the exit status decides whether it is ready.
set -eu
echo "$GREETING from $(uname -n)"
nvidia-smi -L
