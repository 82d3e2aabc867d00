//! Converts between the types of the API and those of the core. Both belong to other crates, so `From` cannot be
//! implemented here.

use atoll_front_kit::ApiError;

/// A response of the API, made from a value of the core.
pub(crate) trait FromCore<T> {
    fn from_core(value: T) -> Self;
}

/// The other side of [`FromCore`].
pub(crate) trait IntoApi<T> {
    fn into_api(self) -> T;
}

impl<T, U: FromCore<T>> IntoApi<U> for T {
    fn into_api(self) -> U {
        U::from_core(self)
    }
}

/// A value of the core, made from a request of the API.
pub(crate) trait FromApi<T>: Sized {
    fn from_api(request: T) -> Result<Self, ApiError>;
}

/// The other side of [`FromApi`].
pub(crate) trait IntoCore<T> {
    fn into_core(self) -> Result<T, ApiError>;
}

impl<T, U: FromApi<T>> IntoCore<U> for T {
    fn into_core(self) -> Result<U, ApiError> {
        U::from_api(self)
    }
}
