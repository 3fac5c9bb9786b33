//! What tests of stores share: the memory store, the conformance suite, the fault injector and a
//! clock turned by hand.
