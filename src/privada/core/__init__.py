"""Values that every other part speaks in: clipped sums, releases, layouts, bits, errors."""
