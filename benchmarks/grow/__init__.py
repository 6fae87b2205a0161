"""Models of a larger shape that compute what a small one does, for speeds at the cost of published models' shapes."""
