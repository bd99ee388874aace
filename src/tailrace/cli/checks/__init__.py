"""The checks of `tailrace doctor`, one module per subject; none of them prints, and none changes a file."""
