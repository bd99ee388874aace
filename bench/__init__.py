"""The benchmark: tailrace beside what a user would pick instead, in one run on one machine, as ratios."""
