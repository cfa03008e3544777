// The types of `structured-headers` name this one of the DOM's, which we compile without.
// A declaration file is not emitted, so nothing of this reaches the package.
type BufferSource = ArrayBufferView | ArrayBuffer
