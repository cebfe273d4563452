"""From facts to a verdict: families judge a run's facts, the arbiter ranks the findings. Start with engine.py."""
