"""llama.cpp as an engine: binding, runner, sampling and the worker around them."""
