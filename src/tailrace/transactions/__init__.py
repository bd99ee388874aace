"""A kind of coordinator: the transactions of producers, one for each transactional id."""
