"""HTTP endpoints, one module a subject, and what they share."""
