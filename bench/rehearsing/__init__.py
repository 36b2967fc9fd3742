"""What the benchmarks of apply need: a whole world in virtual time, random plans, and what no tool could do better."""
