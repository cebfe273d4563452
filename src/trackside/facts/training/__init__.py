"""Facts about training: steps, loss, evaluations, resumes. Start with learning.py."""
