"""What `tailrace doctor` looks at, one module for each thing; nothing in here prints, and nothing changes a file."""
