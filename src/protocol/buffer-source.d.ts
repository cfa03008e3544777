// The types of `structured-headers` refer to this DOM type, and the project compiles without the
// DOM. A declaration file is not emitted, so the package does not contain it.
type BufferSource = ArrayBufferView | ArrayBuffer
