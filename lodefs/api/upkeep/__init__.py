"""What a store keeps, and what that takes: deletion, accounts, retention."""
