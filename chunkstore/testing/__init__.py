"""What tests of a store and of a push share: the contract suite, faults, directories."""
