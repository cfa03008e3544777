// One character before the @ is enough to decide, and keeps the search linear. The last label
// must be letters, so that `package@10.20.30` is no address.
const EMAIL = /[^\s@]@(?:[^\s@.]+\.)+\p{L}{2,}/u

// A plus, then 7 to 15 digits (E.164), each after at most three separators. A plus inside a word
// is base64, and so is a number that runs on into letters.
const PHONE = /(?<![\p{L}\d+/=])\+\d(?:[ ().\-/]{0,3}\d){6,14}(?![\p{L}\d+/=])/u

// ddd-dd-dddd standing alone. No group of a UUID has three or two digits.
const SOCIAL_SECURITY_NUMBER = /(?<![\p{L}\d])\d{3}-\d{2}-\d{4}(?![\p{L}\d])/u

/** What a key seems to contain, in words for the client, or `undefined`. */
export function personalDataIn(key: string): string | undefined {
  if (EMAIL.test(key)) return 'an e-mail address'
  if (PHONE.test(key)) return 'a phone number'
  if (SOCIAL_SECURITY_NUMBER.test(key)) return 'a social security number'
  return undefined
}
