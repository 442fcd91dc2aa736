"""Many nodes behind one address: which there are, which one answers a request, and the bytes between."""
