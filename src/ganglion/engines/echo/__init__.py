"""An engine without a model, for tests and demonstrations. Imports no other engine."""
