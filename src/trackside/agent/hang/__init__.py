"""Hang detection: :mod:`.watch` suspects a job, :mod:`.report` describes where each of its ranks is."""
