//! The files of a sandbox. Content is streamed both ways.

use reqwest::Method;

use super::{Answer, Client, MapError, sandbox_path};
use crate::files::{
    ArchiveWritten, EditBody, EditResult, Entry, EntryList, GrepBody, GrepResult, ListQuery, MkdirBody,
    MoveBody, PathQuery, SearchBody, SearchResult, WriteQuery,
};

impl<M: MapError> Client<M> {
    pub async fn stat_file(&self, ident: &str, query: &PathQuery) -> Result<Answer<Entry>, M::Error> {
        self.get_query(&sandbox_path(ident, "/files/stat"), query).await
    }

    pub async fn list_files(&self, ident: &str, query: &ListQuery) -> Result<Answer<EntryList>, M::Error> {
        self.get_query(&sandbox_path(ident, "/files/list"), query).await
    }

    /// The content as a stream.
    pub async fn read_file(&self, ident: &str, query: &PathQuery) -> Result<reqwest::Response, M::Error> {
        self.send(self.request(Method::GET, &sandbox_path(ident, "/files")).query(query)).await
    }

    pub async fn write_file(
        &self,
        ident: &str,
        query: &WriteQuery,
        content: reqwest::Body,
    ) -> Result<Answer<Entry>, M::Error> {
        let request = self.request(Method::PUT, &sandbox_path(ident, "/files")).query(query);
        self.answer_without_limit(request.body(content)).await
    }

    pub async fn remove_file(&self, ident: &str, query: &PathQuery) -> Result<(), M::Error> {
        self.done(self.request(Method::DELETE, &sandbox_path(ident, "/files")).query(query)).await
    }

    pub async fn make_directory(&self, ident: &str, body: &MkdirBody) -> Result<Answer<Entry>, M::Error> {
        self.post(&sandbox_path(ident, "/files/mkdir"), body).await
    }

    pub async fn move_file(&self, ident: &str, body: &MoveBody) -> Result<Answer<Entry>, M::Error> {
        self.post(&sandbox_path(ident, "/files/move"), body).await
    }

    /// Finds files by name.
    pub async fn search_files(
        &self,
        ident: &str,
        body: &SearchBody,
    ) -> Result<Answer<SearchResult>, M::Error> {
        self.post(&sandbox_path(ident, "/files/search"), body).await
    }

    /// Finds lines in files.
    pub async fn grep_files(&self, ident: &str, body: &GrepBody) -> Result<Answer<GrepResult>, M::Error> {
        self.post(&sandbox_path(ident, "/files/grep"), body).await
    }

    /// Replaces exact text in a file.
    pub async fn edit_file(&self, ident: &str, body: &EditBody) -> Result<Answer<EditResult>, M::Error> {
        self.post(&sandbox_path(ident, "/files/edit"), body).await
    }

    /// Unpacks a tar stream below a directory.
    pub async fn write_archive(
        &self,
        ident: &str,
        query: &PathQuery,
        tar: reqwest::Body,
    ) -> Result<Answer<ArchiveWritten>, M::Error> {
        let request = self.request(Method::PUT, &sandbox_path(ident, "/files/archive")).query(query);
        self.answer_without_limit(request.body(tar)).await
    }
}
