"""A decoder split among processes (tensor parallelism, Shoeybi et al. 2019): one drives, the others follow."""
