//! Volumes and their files.

use reqwest::Method;

use super::{Answer, Client, Listing, MapError, segment};
use crate::volume_files::{
    EntriesQuery, FolderBody, VolumeEntry, VolumeEntryList, VolumePathQuery, VolumeWriteQuery,
};
use crate::volumes::{CopyVolumeBody, UpdateVolumeBody, Volume, VolumeBody, VolumeList};

fn path(volume: &str, below: &str) -> String {
    format!("/v1/volumes/{}{below}", segment(volume))
}

impl<M: MapError> Client<M> {
    pub async fn create_volume(&self, body: &VolumeBody) -> Result<Answer<Volume>, M::Error> {
        self.post("/v1/volumes", body).await
    }

    pub async fn volumes(&self) -> Result<Listing<Volume>, M::Error> {
        self.list::<VolumeList>("/v1/volumes").await
    }

    pub async fn volume(&self, volume: &str) -> Result<Answer<Volume>, M::Error> {
        self.get(&path(volume, "")).await
    }

    pub async fn update_volume(
        &self,
        volume: &str,
        body: &UpdateVolumeBody,
    ) -> Result<Answer<Volume>, M::Error> {
        self.patch(&path(volume, ""), body).await
    }

    pub async fn copy_volume(&self, volume: &str, body: &CopyVolumeBody) -> Result<Answer<Volume>, M::Error> {
        self.post(&path(volume, "/copy"), body).await
    }

    pub async fn delete_volume(&self, volume: &str) -> Result<(), M::Error> {
        self.delete_silently(&path(volume, "")).await
    }

    pub async fn volume_entries(
        &self,
        volume: &str,
        query: &EntriesQuery,
    ) -> Result<Answer<VolumeEntryList>, M::Error> {
        self.get_query(&path(volume, "/entries"), query).await
    }

    pub async fn read_volume_file(
        &self,
        volume: &str,
        query: &VolumePathQuery,
    ) -> Result<reqwest::Response, M::Error> {
        self.send(self.request(Method::GET, &path(volume, "/files")).query(query)).await
    }

    pub async fn write_volume_file(
        &self,
        volume: &str,
        query: &VolumeWriteQuery,
        content: reqwest::Body,
    ) -> Result<Answer<VolumeEntry>, M::Error> {
        let request = self.request(Method::PUT, &path(volume, "/files")).query(query);
        self.answer_without_limit(request.body(content)).await
    }

    pub async fn remove_volume_file(&self, volume: &str, query: &VolumePathQuery) -> Result<(), M::Error> {
        self.done(self.request(Method::DELETE, &path(volume, "/files")).query(query)).await
    }

    pub async fn make_volume_folder(
        &self,
        volume: &str,
        body: &FolderBody,
    ) -> Result<Answer<VolumeEntry>, M::Error> {
        self.post(&path(volume, "/folders"), body).await
    }
}
