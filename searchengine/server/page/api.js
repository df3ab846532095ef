// Requests to the server. A token is kept until the tab is closed.

const KEY = "searchengine-token";

export class ApiError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

export function useToken(token) {
  sessionStorage.setItem(KEY, token);
}

export const hasToken = () => sessionStorage.getItem(KEY) !== null;

/** The JSON of a response; `body` makes it a POST. Throws ApiError, and AbortError if it is given up. */
export async function call(path, body, signal) {
  const headers = {};
  const token = sessionStorage.getItem(KEY);
  if (token) headers.Authorization = `Bearer ${token}`;
  if (body) headers["Content-Type"] = "application/json";
  let response;
  try {
    response = await fetch(path, { // relative to the page, which may be below a prefix
      method: body ? "POST" : "GET",
      headers,
      signal,
      body: body && JSON.stringify(body),
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, "The server cannot be reached.");
  }
  const text = await response.text();
  let json;
  try {
    json = JSON.parse(text);
  } catch {
    throw new ApiError(response.status, `The server answered ${response.status}.`);
  }
  if (!response.ok) throw new ApiError(response.status, json.error.message);
  return json;
}
