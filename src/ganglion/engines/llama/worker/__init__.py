"""The worker process: one loaded model and its step loop."""
