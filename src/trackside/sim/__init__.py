"""WHAT WOULD IT LOOK LIKE: a healthy cluster and one file a fault. Knows nothing of diagnosis."""
