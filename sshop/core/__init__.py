"""The rules of the product, pure: no clock, no input or output, no environment. What acts stands in other rooms."""
